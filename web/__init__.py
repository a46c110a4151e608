"""The web application: pages and an API over released numbers. See docs/web.md."""
