"""What a run does when something goes wrong: guards, the journal, rehearsed faults."""
