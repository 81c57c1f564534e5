"""Object stores: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage."""
