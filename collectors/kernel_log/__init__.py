"""The kernel's log: records with bounds, and the rules that find broken hardware in it."""
