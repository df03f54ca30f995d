"""What workers that only know their neighbours do: replicas that are averaged in pairs or by shares, links, members."""
