"""A fleet's first hour: folders of each party, what each runs, and a trial that plays all of it."""
