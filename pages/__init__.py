"""What pages of numbers share: layout, charts and words; it knows no store, agent or server.

`number` is a number with its error, `wording` says one, the chart modules draw many, and `layout`
puts what was drawn into a page. Everything is a pure function of its arguments.
"""
