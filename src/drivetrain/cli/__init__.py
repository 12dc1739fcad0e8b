"""One file a verb: compose the rooms below, print, exit."""
