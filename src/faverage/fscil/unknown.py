class Familiarity:
    def __init__(self, members): self.members=members
