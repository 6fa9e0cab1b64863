"""Files: what users upload and tools make, stored outside of messages, in the database, a directory or S3."""
