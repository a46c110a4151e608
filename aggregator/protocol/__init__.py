"""What both parties' state machines share: tasks, rosters, epochs, releases, their port."""
