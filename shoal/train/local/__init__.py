"""What workers that train alone for a while do when they meet: rounds, fragments, outer steps."""
