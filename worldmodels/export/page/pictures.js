// Pictures on canvases.

/** Draws a picture (ImageData) on a canvas, whose size becomes the picture's. */
export function draw(canvas, picture) {
  if (canvas.width !== picture.width || canvas.height !== picture.height) {
    canvas.width = picture.width;
    canvas.height = picture.height;
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

/** The middle square of a picture file, reduced to a number of pixels a side (ImageData). */
export async function readSquare(file, side) {
  const bitmap = await createImageBitmap(file);
  const edge = Math.min(bitmap.width, bitmap.height);
  const canvas = new OffscreenCanvas(side, side);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(
    bitmap, (bitmap.width - edge) / 2, (bitmap.height - edge) / 2, edge, edge, 0, 0, side, side);
  bitmap.close();
  return context.getImageData(0, 0, side, side);
}
