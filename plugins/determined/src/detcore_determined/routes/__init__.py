"""The HTTP API of the earlier system, for that system's client.

Requests for data that detcore has are answered from detcore's records. All other requests are
refused with a message.
"""
