"""What a device keeps on its disk: blobs, results, memory, and its privacy ledger."""
