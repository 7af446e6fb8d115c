"""What regions compute in: asked for by the user, concluded from data, held to an accuracy budget."""
