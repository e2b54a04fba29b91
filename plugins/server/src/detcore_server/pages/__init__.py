"""Web pages under ``/ui`` that show the records.

Pages are rendered from templates and charts of `detcore_report`. While something runs, a script
requests the page again and replaces changed parts.
"""
