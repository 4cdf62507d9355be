"""What is compared: each way of remembering in a module of its own, behind the protocol of ``base``, listed in ``registry``."""
