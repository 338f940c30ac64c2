"""Who may call, and how much: keys, the file they come from, and the limits that each has."""
