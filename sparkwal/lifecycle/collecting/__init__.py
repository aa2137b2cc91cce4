"""Deletes and erases what no reader and no writer needs."""
