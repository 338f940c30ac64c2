"""`make deploy-check`: what the manifests promise each other, the service and the cluster.

Each rule is a function from one rendered overlay, or from all of `deploy/`, to findings.
"""
