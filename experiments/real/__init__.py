"""Does reinforcement learning make a pretrained language model say what it knows?"""
