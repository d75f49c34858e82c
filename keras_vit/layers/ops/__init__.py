"""Operations that layers are computed with."""
