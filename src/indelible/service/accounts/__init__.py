"""The use cases of logins: tokens, users, shares, and their results."""
