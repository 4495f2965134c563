"""Sets of keys and queries for knn.py and the `knn` benchmark, from packages' sample images and from data.py.

    knn_data.py FOLDER

Writes patches-784.safetensors: 60,000 + 10,000 patches of 28 x 28 pixels of the photographs that come with scikit-learn and
scikit-image. Photographs are cut into stripes; every seventh gives queries only, so that keys and queries never overlap."""
import os, sys

import numpy as np
from safetensors.numpy import save_file

SIZE, STRIPE = 28, 112


def grey(image):
    image = np.asarray(image, np.float32)
    return image[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32) if image.ndim == 3 else image


def photographs():
    import skimage.data, skimage.io
    from sklearn.datasets import load_sample_images

    yield from map(grey, load_sample_images().images)
    root = os.path.dirname(skimage.data.__file__)
    for name in sorted(os.listdir(root)):
        if name.split(".")[-1] in ("png", "jpg", "tif", "tiff", "gif"):
            try:
                image = skimage.io.imread(os.path.join(root, name))
            except Exception:
                continue
            if image.ndim in (2, 3) and min(image.shape[:2]) >= 180 and image.dtype == np.uint8:
                yield grey(image)


def main():
    rng, images = np.random.default_rng(0), list(photographs())
    keys, queries = [], []
    for number, image in enumerate(images):
        height, width = image.shape
        for stripe, left in enumerate(range(0, width - SIZE + 1, STRIPE)):
            right = min(left + STRIPE, width)
            places = [(number, y, x) for y in range(0, height - SIZE + 1, 2) for x in range(left, right - SIZE + 1, 2)]
            (queries if stripe % 7 == 3 or (stripe == 1 and width < 448) else keys).extend(places)

    def cut(places, n):
        out = []
        for i in rng.permutation(len(places)):
            number, y, x = places[i]
            patch = images[number][y : y + SIZE, x : x + SIZE]
            if patch.std() >= 4:  # blank sky: near duplicates
                out.append(patch.reshape(-1))
            if len(out) == n:
                break
        return np.stack(out)

    tensors = {"base": cut(keys, 60000), "query": cut(queries, 10000)}
    save_file(tensors, os.path.join(sys.argv[1], "patches-784.safetensors"), metadata={"metric": "l2"})


if __name__ == "__main__":
    main()
