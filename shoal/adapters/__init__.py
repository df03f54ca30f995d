"""Inside the user's process: what a framework lacks to run as a job. One file per framework, which imports it."""
