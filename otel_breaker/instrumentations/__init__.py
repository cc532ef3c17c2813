"""One small module a library, over one table (`_table`) and one engine (`_patch`)."""
