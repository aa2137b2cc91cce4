"""The options of users: parsing, types, defaults and meaning, one table for each use."""
