"""What several tests share; some of these modules are programs that a test starts."""
