"""The tables, their column types and enumerations, as migrations have to build them."""
