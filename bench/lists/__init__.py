"""`python -m bench lists`: lists of 100,000 chats and searches over 1,000,000 messages, on both databases.

corpus.py makes the texts, load.py fills a database with them, measure.py measures and prints the plans.
"""
