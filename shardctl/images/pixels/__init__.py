"""What is done to the values of pixels: each function takes an RGB image and returns another; none
draws a random number.

What they mean is torchvision's `transforms.v2`. Where that is Pillow's own operation, the result is
equal to it bit for bit; docs/recipes.md says which operations differ, and by how much.
"""
