"""Operations that the layers use."""
