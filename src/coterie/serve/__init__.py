"""What a trained run is for: a newcomer's group, predictions, exported models."""
