"""A local cluster whose machines have roots of their own, and are made nodes by lifecycle/.

It plays the cloud: machines with empty disks, a list of them in resource_config.json, and a call of
lifecycle/on_create.sh on each, at creation and again on whatever replaces one.
"""
