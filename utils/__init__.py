"""What two or more notebooks share: one module, one duty. Importing it opens no socket and loads no framework."""
