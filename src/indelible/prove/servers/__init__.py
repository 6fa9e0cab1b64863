"""The servers of a proof: started, killed in every way there is, and started again."""
