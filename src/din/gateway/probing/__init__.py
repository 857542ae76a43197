"""Looking at models on nodes: profiles, verification, calibration."""
