"""The report as a page: HTML, style and script in one text, which asks no network for anything."""
