"""Where bytes live: blobs, the chunks of uploaded files, manifests, logs, and the folders jobs write into."""
