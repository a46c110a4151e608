"""`pointillist simulate`: a scenario played on this machine, shown live, kept in a folder."""
