"""Streams whose writers know the time: segments and cuts, what writers say, what is made of it, and
where a reader is in time.
"""
