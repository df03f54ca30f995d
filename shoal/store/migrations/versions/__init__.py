"""One module per revision; a revision that was shipped is never changed."""
