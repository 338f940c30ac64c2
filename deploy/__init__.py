"""What installs the service, and what checks that."""
