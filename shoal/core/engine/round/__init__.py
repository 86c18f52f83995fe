"""The round that a run is in: who is counted on, who is asked, who has answered, what is waited for."""
