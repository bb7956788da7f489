"""Methods that the papers compare against: the same contract, the same tests."""
