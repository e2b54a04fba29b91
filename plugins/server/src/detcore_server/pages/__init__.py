"""The web pages below ``/ui``, which show the records.

They are made of templates and the drawings of `detcore_report`; one script in them requests the
same page again while something runs, and replaces the parts that have changed.
"""
