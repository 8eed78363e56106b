"""What people see: tables and pictures of profiles, plans and measurements."""
