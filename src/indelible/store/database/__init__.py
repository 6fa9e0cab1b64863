"""The databases themselves: connections, tables, migrations, errors, backup."""
