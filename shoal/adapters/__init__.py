"""One file per framework or library, inside the user's process: what a launcher's variables mean there."""
