"""The OpenAPI document: schemas of responses, problems of each route, and the page that shows it."""
