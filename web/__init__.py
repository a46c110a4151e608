"""The web application: pages and an API over released numbers, which it reads and never changes.

`page_shape` says what a page is, `pages_*` are pages, `page_list` names them. `application` serves
them, `guard` stands before it. docs/web.md shows how a page is added.
"""
