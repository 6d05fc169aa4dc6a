"""Questions for annotators, their sheets, and the scores of the answers (Fan et al. 2018)."""
