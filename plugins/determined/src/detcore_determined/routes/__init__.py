"""The HTTP API of the earlier system, for that system's own client.

Requests for data that detcore has are answered from detcore's records; all others are refused with
a message that says so.
"""
