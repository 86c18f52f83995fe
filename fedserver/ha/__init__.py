"""All that a server needs so that another machine can take its place.

postgresql     the database on a server of its own, whose session is the right to write
translation    the store's SQL in PostgreSQL's words
blob_folder    the folder of blobs that several servers reach, and whose turn it is to change it
bucket         the same in a bucket: `bucket_copies` has no name twice, `bucket_term` says who leads
standby        the server that waits until it may lead
migration      from a state folder to all of that, and back
"""
